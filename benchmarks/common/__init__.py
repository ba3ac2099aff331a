"""What benchmarks share: result files, versions of code, data, shards, and generated images."""
