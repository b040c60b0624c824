"""Grading pages: graders, adjudicators and admins of one grading folder, served by one process."""
