"""What a stage leaves on the disk for later ones: files, and arrays that all ranks fill."""
