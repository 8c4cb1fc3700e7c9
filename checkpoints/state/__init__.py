"""State tables of slices and of live rows; runs read and write state only through these modules."""
