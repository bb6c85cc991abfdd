"""The palette by Okabe and Ito, which people with any kind of colour vision can tell apart, with grey for yellow."""

__all__ = ["BLACK", "BLUE", "GREEN", "GREY", "ORANGE", "PURPLE", "SKY", "VERMILLION"]

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#7F7F7F"
GREEN, PURPLE, SKY, VERMILLION, BLACK = "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000"
