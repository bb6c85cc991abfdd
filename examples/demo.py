"""`make demo`: inference on two of the paper's programs, and a picture."""

import sys

import anabranch as ab
from anabranch import programs

__all__ = ["main"]


def main(file: str = "mixture.png") -> None:
    """Infer the number of clusters of the paper's mixture, then a function from a grammar."""
    print("A Gaussian mixture with an unknown number of clusters: 150 points from five, section 3 of the paper.\n")
    posterior = ab.infer(programs.mixture, programs.mixture_data(), seed=0, tolerance=0.02)
    print(posterior)
    print("\nHow many clusters?\n")
    for value, probability in list(posterior.probability("K").items())[:5]:
        print(f"  K = {value}: {probability:.3g}")
    posterior.plot(file=file)
    print(f"\nThe picture is in {file}.")

    print("\nFunction induction: the shape of a function from a grammar, section 7.3. The data are noisy points of")
    print("-x + 2 sin(5 x^2).\n")
    data = programs.function_induction_data()
    posterior = ab.infer(programs.function_induction, *data, seed=0, tolerance=0.02)
    print(posterior)


if __name__ == "__main__":
    main(*sys.argv[1:2])
