"""Renders the results of jobs: tables for a terminal, or an HTML page with plots.

report        A report: facts, tables, plots and notes
report_plot   Draws a plot as SVG with matplotlib
report_page   Renders a report as one HTML page
"""
