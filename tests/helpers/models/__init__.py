"""Modules that several areas test, and the stages of every model."""
