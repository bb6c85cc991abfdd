"""All that an answer consists of, for answers that must be the same bit for bit."""

import numpy as np


def bits(posterior):
    estimates = [solution.estimate for solution in posterior.solutions if solution.estimate is not None]
    return {
        "log_evidence": posterior.log_evidence,
        "log_evidence_sd": posterior.log_evidence_sd,
        "weights": posterior.evidence.weights.tobytes(),
        "points": [estimate.points.tobytes() for estimate in estimates],
        "log_weights": [estimate.log_weights.tobytes() for estimate in estimates],
        "methods": [(estimate.method, estimate.remarks, estimate.notes) for estimate in estimates],
        "paths": [(solution.path.description, solution.visits) for solution in posterior.solutions],
        "evaluations": posterior.run.evaluations,
        "executions": posterior.run.executions,
        "stopped": posterior.run.stopped,
        "warnings": [each for each in posterior.warnings if "could not be written" not in each],
        "history": posterior.history.to_csv(),
        "draws": [{key: np.asarray(value).tobytes() for key, value in draw.items()} for draw in posterior.draws(50)],
    }
