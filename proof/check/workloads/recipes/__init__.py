"""Workloads of the recipes, one for each, and one of all at once."""

from oncegate.proof.check.workloads.recipes.mixed import EACH, MixedRecipes

__all__ = ["EACH", "MixedRecipes"]
