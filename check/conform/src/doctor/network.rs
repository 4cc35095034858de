//! A network that loses packets.

use super::*;

/// One packet of so many is lost.
const LOSS: &str = "50";
/// The address of the daemon, and the one at which the network in between reaches it.
const HERE: &str = "10.9.0.1";
const THERE: &str = "10.9.0.2";

/// The series of the segments that were sent to the host again.
const RETRANSMITS: &str = "lunar_host_retransmits_total\
    {host=\"iqn.2026-01.io.lunar:bench\",target=\"main\",transport=\"iscsi\"}";

/// The network in between: an interface whose packets come back with their addresses exchanged, so that a connection to
/// the other address of the interface reaches this machine. Of the long packets from the daemon, each Nth is lost.
const REFLECTOR: &str = r#"
import fcntl, os, struct, sys

name, every = sys.argv[1], int(sys.argv[2])
tun = os.open("/dev/net/tun", os.O_RDWR)
# TUNSETIFF; IFF_TUN | IFF_NO_PI
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x1001))
count = 0
while True:
    packet = bytearray(os.read(tun, 65536))
    if packet[0] >> 4 != 4:
        continue
    count += len(packet) > 1000
    if every and len(packet) > 1000 and count % every == 0:
        continue
    packet[12:16], packet[16:20] = packet[16:20], packet[12:16]
    os.write(tun, packet)
"#;

/// The daemon, a load and the examination in a network namespace of their own.
const SCRIPT: &str = r#"
set -e
cd "$1"
ip link set lo up
setpriv --pdeathsig KILL -- python3 reflector.py lossy "$2" 2>reflector.log &
tries=0
until ip address add "$3/24" dev lossy 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { cat reflector.log; echo "no interface"; exit 1; }
    sleep 0.1
done
ip link set lossy up
echo made >made
setpriv --pdeathsig KILL -- lunar daemon --config lossy.toml >daemon.log 2>&1 &
daemon=$!
tries=0
until lunar status >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] && kill -0 $daemon || { cat daemon.log; exit 1; }
    sleep 0.1
done
lunar bench "$4" --rw randread --bs 64k --depth 4 --warmup 0 --time 6 >load.log 2>&1 &
load=$!
sleep 3
lunar session list --json >sessions.json
lunar session show "$(lunar session list | awk 'NR == 2 { print $1 }')" >session.txt
lunar explain slow none >slow.txt
metrics() {
    curl --silent --unix-socket "$LUNAR_SOCKET" http://lunar/metrics
}
metrics >under-load.txt
lunar doctor --json --interval 1s >doctor.json || [ $? -ge 5 ]
wait $load || { cat load.log; exit 1; }
metrics >after-it.txt
kill $daemon
wait $daemon
"#;

/// The output of the commands.
struct Seen {
    sessions: Value,
    session: String,
    /// The explanation of the slowness of the volume.
    slow: String,
    /// The page of metrics under load, and after the session has ended.
    metrics: [String; 2],
    findings: Vec<Value>,
}

fn run(service: &Service, every: &str) -> Result<Seen> {
    let folder = &service.folder;
    let config = std::fs::read_to_string(&service.file)?;
    let port = service.portal.port();
    let file = folder.join("lossy.toml");
    std::fs::write(&file, config.replace(&service.portal.to_string(), &format!("{HERE}:{port}")))?;
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600))?;
    std::fs::write(folder.join("reflector.py"), REFLECTOR)?;
    let url = format!("iscsi://{THERE}:{port}/{TARGET}/1");
    let mut own = service.command("unshare");
    own.arg("--net").args(["sh", "-c", SCRIPT, "sh"]).arg(folder).args([every, HERE, &url]);
    let ended = process::run(&mut own, LIMIT)?;
    if !folder.join("made").exists() {
        return skip(format!("no network of its own for the test: {}", ended.text.trim()));
    }
    ended.succeeded()?;
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).with_context(|| name.to_owned());
    let examined: Value = serde_json::from_str(&read("doctor.json")?)?;
    Ok(Seen {
        sessions: serde_json::from_str(&read("sessions.json")?)?,
        session: read("session.txt")?,
        slow: read("slow.txt")?,
        metrics: [read("under-load.txt")?, read("after-it.txt")?],
        findings: examined["findings"].as_array().context("findings")?.clone(),
    })
}

/// The segments of a session that were sent, and those that were lost.
fn segments(seen: &Seen) -> Result<(u64, u64)> {
    let tcp = &seen.sessions[0]["tcp"][0];
    let of = |key: &str| tcp[key].as_u64().with_context(|| format!("{key} in {}", seen.sessions));
    ensure!(of("rtt-microseconds")? > 0 && of("congestion-window")? > 0 && of("send-mss")? > 1000, "{tcp}");
    Ok((of("segments-sent")?, of("retransmits")?.saturating_sub(of("duplicates")?)))
}

/// Packets that are lost on the way to the host are seen in the session, and found.
pub(super) fn lossy(lab: &Lab, driver: Driver) -> Result<()> {
    let service = Service::new(lab, driver, "lossy", None)?;
    let seen = run(&service, LOSS)?;
    let (sent, lost) = segments(&seen)?;
    ensure!(sent > 2000 && lost * 200 > sent, "{lost} of {sent} segments are lost");
    ensure!(seen.session.contains("segments sent again") && seen.session.contains("tcp  "), "{}", seen.session);
    let finding = find(&seen.findings, "retransmits", "session iscsi-").with_context(|| shown(&seen.findings))?;
    let evidence = finding["evidence"].to_string();
    ensure!(evidence.contains(THERE) && evidence.contains("iqn.2026-01.io.lunar:bench"), "{evidence}");
    ensure!(finding["command"].as_str().is_some_and(|command| command.starts_with("lunar session show")), "{finding}");
    ensure!(
        seen.slow.contains("the network to iqn.2026-01.io.lunar:bench") && seen.slow.contains(THERE),
        "{}",
        seen.slow
    );
    ensure!(seen.slow.contains("segments were lost") && seen.slow.contains("lunar session show"), "{}", seen.slow);
    let again = |page: &String| series(page, RETRANSMITS);
    let [before, after] = [again(&seen.metrics[0])?, again(&seen.metrics[1])?];
    ensure!(before > 10 && after >= before, "{before} segments were sent again, and {after} at the end");
    let seen = run(&service, "0")?;
    let (sent, lost) = segments(&seen)?;
    ensure!(lost * 1000 < sent, "{lost} of {sent} segments are lost without a reason");
    ensure!(find(&seen.findings, "retransmits", "session").is_none(), "{}", shown(&seen.findings));
    Ok(())
}
