"""Where rows come from: kinds of sources, what a batch reads of them, and its rows in Spark."""
