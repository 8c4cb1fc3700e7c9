"""Tables in object storage, against a real S3 server (versitygw), and against stores that would lose commits."""
