#!/usr/bin/python3
"""A Django site on SQLite that saves the session of each visitor. `exercises.py migrate` creates its database, gunicorn serves
`exercises:application`. DOCKET_SQLITE is the database file, DOCKET_SYNCHRONOUS the setting of SQLite."""
import os
import sys

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DOCKET_SQLITE"], "CONN_MAX_AGE": 600}},
    INSTALLED_APPS=["django.contrib.sessions"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="a secret of the docket",
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db.backends.signals import connection_created  # noqa: E402
from django.dispatch import receiver  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402


@receiver(connection_created)
def set_up(connection, **_):
    connection.cursor().execute(f"PRAGMA synchronous = {os.environ.get('DOCKET_SYNCHRONOUS', 'FULL')}")


def answer(request):
    request.session["points"] = request.session.get("points", 0) + 1
    request.session.save()
    reply = HttpResponse("right" * 20, content_type="text/plain")
    reply["Content-Length"] = "100"
    return reply


urlpatterns = [path("", answer)]

if __name__ == "__main__":
    sys.modules["exercises"] = sys.modules["__main__"]
    call_command("migrate", verbosity=0)
else:
    application = get_wsgi_application()
