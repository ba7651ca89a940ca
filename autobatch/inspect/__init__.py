"""What happened and why: reports, profiles and plots."""
