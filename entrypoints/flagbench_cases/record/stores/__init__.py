"""Where a run's record and bundles are kept: in a folder, in a bucket, or where a ticket lets them be uploaded."""

from flagbench_cases.record.stores.open import chosen_folder, open_store
from flagbench_cases.record.stores.store import Store
from flagbench_cases.record.stores.ticket import Ticket, read_ticket
from flagbench_cases.record.stores.unsent import Unsent

__all__ = ["Store", "Ticket", "Unsent", "chosen_folder", "open_store", "read_ticket"]
