"""How things show themselves: tables and pictures as HTML for notebooks, and progress that stays on one line."""
