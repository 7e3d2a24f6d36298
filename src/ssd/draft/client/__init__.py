"""The target's side: sessions, mirrors of the draft's trees, and what to propose. Needs numpy, no torch."""
