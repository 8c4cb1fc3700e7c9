"""Stock prices: the last trades, bars of equal volume, and the trend of the last minutes."""
