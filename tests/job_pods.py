"""What a pod of a job gets to see, read from the documents: for running the same containers without a cluster."""

import re

import yaml

from flagbench.runs.launchers.kubernetes.render import render_job

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def job_documents(request):
    """The Service and the Job that `flagbench job` prints for a request."""
    return list(yaml.safe_load_all(render_job(request)))


def expand(text, environment):
    """What Kubernetes makes of `text`: `$(NAME)` becomes the value of NAME where there is one, `$$` becomes `$`."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else environment.get(match[1], match[0]), text)


def pod_name(documents, index):
    """The name in the cluster's DNS, `HOST.SERVICE`, of the pod of that index."""
    job = documents[1]
    return "%s-%d.%s" % (job["metadata"]["name"], index, job["spec"]["template"]["spec"]["subdomain"])


def pod_environment(documents, index):
    """The variables of the pod of that index; those from Secrets and from the cluster itself are not among them."""
    found = {}
    for entry in _container(documents)["env"]:
        found[entry["name"]] = expand(entry["value"], found)
    return {**found, "JOB_COMPLETION_INDEX": str(index)}


def pod_arguments(documents, index):
    """The arguments that the image's entrypoint is given."""
    return [expand(word, pod_environment(documents, index)) for word in _container(documents)["args"]]


def pod_image(documents):
    """The image that every pod runs."""
    return _container(documents)["image"]


def _container(documents):
    (container,) = documents[1]["spec"]["template"]["spec"]["containers"]
    return container
