"""Events and boxes as pictures, videos and in a viewer."""
