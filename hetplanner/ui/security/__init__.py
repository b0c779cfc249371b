"""Who may open the page and start processes: Host names, local users, the launch token."""
