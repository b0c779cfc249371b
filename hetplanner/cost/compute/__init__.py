"""What each device computes at: rates of the catalog and the cluster file, and the problem's profile before them."""
