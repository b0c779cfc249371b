"""Any `nn.Module` with example inputs as a workload: its OP-DAG and its program, by torch.export, without weights."""
