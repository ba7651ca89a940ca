"""Stand-ins for devices, backends and clocks that record requests."""
