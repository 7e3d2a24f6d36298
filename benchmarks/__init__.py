"""What was measured to build and to judge this engine: programs of a checkout, in no wheel. See README.md."""
