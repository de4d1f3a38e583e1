"""A Django application that reads a row of PostgreSQL in each request. DOCKET_AGE is CONN_MAX_AGE."""
import os

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="docket", MIDDLEWARE=[], USE_TZ=True,
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": "docket", "USER": "docket",
        "HOST": os.environ.get("DOCKET_HOST", "127.0.0.1"), "PORT": 5432, "CONN_MAX_AGE": int(os.environ.get("DOCKET_AGE", "0")),
    }},
)
django.setup()


def account(_request):
    with connection.cursor() as cursor:
        cursor.execute("select balance from account where id = %s", [7])
        body = f"{cursor.fetchone()[0]}\n"
    return HttpResponse(body, headers={"Content-Length": str(len(body))})


urlpatterns = [path("", account)]
application = get_wsgi_application()
