"""Commands that measure speed and check the installation."""
