"""Topics of Kafka as sources, against a real broker."""
