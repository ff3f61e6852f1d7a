"""HTML reports: one file with tables and plots that needs nothing from the network."""
