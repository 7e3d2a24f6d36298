"""How fast a target and its draft will be, before they run: a model of rounds, hardware, prices and pools."""
