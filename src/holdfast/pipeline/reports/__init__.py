"""Reports of jobs: tables, JSON, and HTML pages with plots.

report       What a job tells people at its end
report_plot  Plots of a report as SVG, drawn by matplotlib, to stand inside an HTML page
report_page  A report as one HTML page
"""
