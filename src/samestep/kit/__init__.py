"""What several recipes share: each rule once. It knows no recipe."""
