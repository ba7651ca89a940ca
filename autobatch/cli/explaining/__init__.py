"""Commands that show what becomes of a program."""
