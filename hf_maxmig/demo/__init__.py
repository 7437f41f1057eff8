"""The page of `maxmig demo`: what it knows, as plain functions and values, and the Gradio app that shows it."""
