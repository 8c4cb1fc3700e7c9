"""State tables: of slices, or of live rows; the only modules that read and write them for runs."""
