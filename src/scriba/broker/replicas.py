"""Every partition replica this broker hosts: found by name, opened and closed by the image.

The controller's image says what should be here. `apply` brings the directories in line with it:
new partitions get a log, gone ones lose theirs, leaderships begin and end. Nothing else creates or
removes a partition's files.
"""
