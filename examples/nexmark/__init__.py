"""The windowed queries of the Nexmark benchmark as pipelines."""
