"""How fast a target and its draft will be, before they run: rounds in closed form, devices by data sheet."""
