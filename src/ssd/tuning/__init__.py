"""The settings for a pair of models on a machine: measured, searched in a model of the round, confirmed."""
