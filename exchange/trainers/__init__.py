"""Rollouts in the forms that training packages ask for: one small adapter a package."""
