"""Predicts the speed of a target and a draft from data sheets and a closed-form model of a round."""
