"""Layouts of bytes and files that several formats share: readers and writers of our own."""
