"""Stand-ins for devices, backends and clocks, which know what they were asked for."""
