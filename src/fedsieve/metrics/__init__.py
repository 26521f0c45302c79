"""What a run is measured by: the table of metrics, bytes sent and MACs of training."""
