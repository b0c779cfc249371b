"""What is around the pages: header, tabs, notices, address, session."""
