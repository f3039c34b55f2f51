"""Makes the pictures of the shop's page in docs/images: a broker, an hour of figures, a browser.

python -m tests.browser.pictures [FOLDER]
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.browser.dashboards import Dashboard
from tests.browser.shop_figures import Figures
from tests.browser.webdriver import browser
from tools.kafka.brokers import ScribaBroker, running

ROOT = Path(__file__).resolve().parents[2]

SIZE = 1320, 1300
NAMES = {"light": "dashboard.png", "dark": "dashboard-dark.png"}
DRAWN_SECONDS = 1.5
"""Bars and numbers glide to their places."""


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as data, running(ScribaBroker(Path(data))) as broker:
        shop = Figures(broker.bootstrap)
        shop.hour()
        page = Dashboard(broker.bootstrap, "--stale-after", "3600")
        try:
            with browser() as screen:
                screen.size(*SIZE)
                for scheme, name in NAMES.items():
                    shop.news()
                    shop.producer.flush()
                    screen.prefer(scheme)
                    screen.open(page.address)
                    screen.until("#letters", "not JSON")
                    screen.until("#queries", "figures")
                    time.sleep(DRAWN_SECONDS)
                    screen.picture(folder / name)
        finally:
            page.kill()
            shop.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
