"""Job accounting: MariaDB and slurmdbd on the controller, without a password anywhere.

MariaDB listens on a socket only and knows its clients by their user id (`unix_socket`).
"""

from __future__ import annotations

import time
from pathlib import Path

from labkit import enter, etcdir
from labkit.errors import LabError
from labkit.layout import USERS
from labkit.record import LabRecord

ACCOUNT = "exa"
SLURMDBD_PORT = 6819
DATA_DIR = "/var/spool/mariadb"
SOCKET = "/run/mysqld/mysqld.sock"  # where Debian's client library looks
LOG = "/var/log/slurm/mariadbd.log"
TIMEOUT_S = 60.0

# MariaDB has no option to go to the background when it serves, so this waits for its socket.
START_DATABASE = f"""
set -eu
install -d -o slurm -g slurm /run/mysqld {DATA_DIR}
if [ ! -d {DATA_DIR}/mysql ]; then
    mariadb-install-db --no-defaults --user=slurm --datadir={DATA_DIR} \\
        --auth-root-authentication-method=socket --skip-test-db >{LOG} 2>&1
fi
setsid mariadbd --no-defaults --user=slurm --datadir={DATA_DIR} --socket={SOCKET} \\
    --pid-file=/run/mysqld/mysqld.pid --skip-networking --innodb-buffer-pool-size=64M \\
    </dev/null >>{LOG} 2>&1 &
tries=0
until mariadb --no-defaults --socket={SOCKET} -e 'SELECT 1' >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || {{ tail -n 5 {LOG}; exit 1; }}
    sleep 0.1
done
mariadb --no-defaults --socket={SOCKET} -e "
    CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;
    CREATE DATABASE IF NOT EXISTS slurm_acct_db;
    GRANT ALL ON slurm_acct_db.* TO slurm@localhost;"
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=ctl
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
PidFile=/run/slurmdbd.pid
LogFile=/var/log/slurm/slurmdbd.log
"""


def write_configuration(etc: Path) -> None:
    """slurmdbd insists on a file that nobody but its own user may read."""
    path = etc / "slurm" / "slurmdbd.conf"
    etcdir.write_private(path, SLURMDBD_CONF.encode(), etcdir.account_ids(etc, "slurm"))


def add_users(lab: LabRecord) -> None:
    """Give the lab's users an account. Slurm must know the cluster, so slurmctld must run."""
    door = lab.door("ctl")
    deadline = time.monotonic() + TIMEOUT_S
    cluster = lab.config.name
    while cluster not in enter.run(door, ["sacctmgr", "-nP", "list", "cluster"]):
        if time.monotonic() > deadline:
            raise LabError(f"ctl: slurmctld has not registered with slurmdbd in {TIMEOUT_S:g} s")
        time.sleep(0.1)
    known = enter.run(door, ["sacctmgr", "-nP", "list", "associations", "format=user"]).split()
    missing = [user.name for user in USERS if user.name not in known]
    if missing:
        added = enter.run(door, ["sacctmgr", "-nP", "list", "account", "format=account"]).split()
        if ACCOUNT not in added:
            enter.run(door, ["sacctmgr", "-i", "add", "account", ACCOUNT])
        names = ",".join(missing)
        enter.run(door, ["sacctmgr", "-i", "add", "user", names, f"account={ACCOUNT}"])
