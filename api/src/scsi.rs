//! SCSI commands of the operator to volumes: the handler of the route, and the function of the client.

use crate::audit::Topic;
use crate::client::{Client, ClientError, RequestBody, encoded};
use crate::client_error::Broken;
use crate::control::Control;
use crate::request::{ApiRequest, Outcome, Problem, Reply, shortened};
use crate::route::Method;
use base64ct::{Base64, Encoding};
use lunar_control::api::ProblemDetails;
use lunar_control::live::Later;
use lunar_control::scsi::{
    DATA_BYTES_MAX, SECONDS, SECONDS_MAX, ScsiError, ScsiOrder, ScsiOutcome, ScsiRequest, ScsiView,
};
use std::time::Duration;

/// The longest request, in bytes: the data of a command in Base64, and its other fields.
pub const BODY_BYTES_MAX: usize = DATA_BYTES_MAX as usize / 3 * 4 + (4 << 10);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits; `None` if they are none.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2).map(|at| text.get(at..at + 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

fn order(request: ScsiRequest) -> Result<ScsiOrder, Problem> {
    let ScsiRequest { command, data_in, data_out, seconds } = request;
    let data_out = data_out.map(|text| Base64::decode_vec(&text)).transpose();
    let data_out = data_out.map_err(|why| Problem::bad_request(format!("data-out is not Base64: {why}")))?;
    let seconds = seconds.unwrap_or(SECONDS);
    if !(1..=SECONDS_MAX).contains(&seconds) {
        return Err(Problem::bad_request(format!("seconds is from 1 to {SECONDS_MAX}, not {seconds}")));
    }
    let patience = Duration::from_secs(seconds.into());
    Ok(ScsiOrder { command, data_in, data_out: data_out.unwrap_or_default(), patience })
}

/// The end of a command as a response of the API.
#[must_use]
pub fn view(outcome: ScsiOutcome) -> ScsiView {
    let ScsiOutcome { cdb, name, status, status_name, sense, sense_words, data, wanted } = outcome;
    ScsiView {
        cdb: hex(&cdb),
        command: name,
        status,
        status_name,
        sense: hex(&sense),
        sense_words,
        data: Base64::encode_string(&data),
        wanted,
    }
}

fn problem(volume: &str, why: &ScsiError) -> Problem {
    let (kind, title, status) = match why {
        ScsiError::NotServed => return Problem::not_found(format!("volume '{volume}': {why}")),
        ScsiError::Command(_) | ScsiError::BothDirections | ScsiError::TooLong => return Problem::bad_request(why),
        ScsiError::Copied => ("/problems/copied", "The volume is being copied", 409),
        ScsiError::Busy | ScsiError::Stopping => ("/problems/busy", "The command was not executed", 503),
        ScsiError::Aborted(_) => ("/problems/late", "The command took too long", 504),
        ScsiError::Unfinished(_) => ("/problems/unfinished", "The outcome of the command is unknown", 504),
        ScsiError::Failed => ("/problems/internal", "The command failed", 500),
    };
    ProblemDetails::new(kind, title, status, format!("volume {volume}: {why}")).into()
}

/// `POST /v1/volume/{name}/scsi`
pub fn execute(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let (name, order) = (request.name(), order(request.json()?)?);
    if !control.current().config.volumes.contains_key(&name) {
        return Err(Problem::not_found(format!("there is no volume '{}'", shortened(&name))));
    }
    let (shared, caller) = (request.shared.clone(), request.caller.name.clone());
    let command = |cdb: &[u8], name: Option<&str>| format!("SCSI {} ({})", name.unwrap_or("a command"), hex(cdb));
    // A record before the command is there, whatever the command does to the service.
    let (before, who, volume) = (shared.clone(), caller.clone(), name.clone());
    let begins = move |cdb: &[u8], name: Option<&str>| {
        before.audit_log.add(Topic::Change, &who, &format!("volume {volume}: {} begins", command(cdb, name)));
    };
    let work = control.scsi(&name, order, Box::new(begins)).ok_or_else(|| problem(&name, &ScsiError::NotServed))?;
    Ok(Box::new(move || {
        let ended = work();
        let words = match &ended {
            Ok(ended) => {
                let command = command(&ended.cdb, ended.name.as_deref());
                format!("volume {name}: {command}: {}", ended.status_name)
            }
            Err(why) => format!("volume {name}: SCSI command: {why}"),
        };
        shared.audit_log.add(Topic::Change, &caller, &words);
        Reply::json(&view(ended.map_err(|why| problem(&name, &why))?))
    }))
}

impl Client {
    /// Executes a SCSI command at the logical unit of a volume, through the nexus of the operator, and returns its end.
    /// The caller needs the right to write.
    ///
    /// ```no_run
    /// # use lunar_api::client::Client;
    /// # use lunar_control::scsi::ScsiOrder;
    /// let ended = Client::local(None).scsi("disk", &ScsiOrder::new("READ(10) lba=0 length=8"))?;
    /// assert!(ended.is_good(), "{}: {}", ended.status_name, ended.sense_words);
    /// println!("{} bytes", ended.data.len());
    /// # Ok::<(), lunar_api::client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the volume is not served, or the command is written wrong or did not end in time. A
    /// command that ends with another status than GOOD is no error.
    pub fn scsi(&self, volume: &str, order: &ScsiOrder) -> Result<ScsiOutcome, ClientError> {
        let data_out = (!order.data_out.is_empty()).then(|| Base64::encode_string(&order.data_out));
        let seconds = u16::try_from(order.patience.as_secs()).unwrap_or(u16::MAX);
        let request =
            ScsiRequest { command: order.command.clone(), data_in: order.data_in, data_out, seconds: Some(seconds) };
        let body = RequestBody::Json(serde_json::to_value(&request).map_err(Broken::Json)?);
        let answer = self.call(Method::Post, &format!("/v1/volume/{}/scsi", encoded(volume)), body)?;
        let ScsiView { cdb, command: name, status, status_name, sense, sense_words, data, wanted } =
            serde_json::from_slice(&answer).map_err(Broken::Json)?;
        let bytes = |text: &str| unhex(text).ok_or(Broken::Data);
        Ok(ScsiOutcome {
            cdb: bytes(&cdb)?,
            name,
            status,
            status_name,
            sense: bytes(&sense)?,
            sense_words,
            data: Base64::decode_vec(&data).map_err(|_| Broken::Data)?,
            wanted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tests::TestFolder;
    use crate::test_service::TestService;
    use serde_json::json;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_command_goes_to_the_volume_and_is_in_the_audit_log() {
        let folder = TestFolder::new("[volume.disk1]\nkind = 'ram'\nsize = '1M'\n");
        let service = TestService::start(&folder.0, Vec::new()).expect("it starts");
        let client = Client::local(Some(service.socket.clone()));
        let data: Vec<u8> = (0..DATA_BYTES_MAX).map(|at| (at % 251) as u8).collect();
        let order = ScsiOrder { data_out: data.clone(), ..ScsiOrder::new("WRITE BUFFER") };
        let ended = client.scsi("disk1", &order).expect("the longest data fit");
        assert!(ended.is_good() && ended.data == data && ended.wanted == data.len() as u64);
        assert_eq!((&ended.cdb[..], ended.name.as_deref()), (&[0x3c, 0][..], Some("WRITE BUFFER")));
        let ended = client.scsi("disk1", &ScsiOrder::new("READ(6)")).expect("the status is no error of the call");
        assert_eq!((ended.status, &ended.sense[..]), (2, &[0x70, 0, 5][..]));
        let told: Vec<String> = service.audit_log.after(0).iter().map(|record| record.to_string()).collect();
        let scsi: Vec<&str> =
            told.iter().filter_map(|record| Some(record.split_once("volume disk1: SCSI ")?.1)).collect();
        assert_eq!(
            scsi,
            [
                "WRITE BUFFER (3c00) begins",
                "WRITE BUFFER (3c00): GOOD",
                "READ(6) (3c00) begins",
                "READ(6) (3c00): CHECK CONDITION"
            ]
        );
    }

    #[test]
    fn the_audit_log_has_a_command_before_the_command_ends() {
        let folder = TestFolder::new("[volume.disk1]\nkind = 'ram'\nsize = '1M'\n");
        let service = TestService::start(&folder.0, Vec::new()).expect("it starts");
        service.silent.store(true, Ordering::Release);
        let client = Client::local(Some(service.socket.clone()));
        let command = std::thread::spawn(move || client.scsi("disk1", &ScsiOrder::new("SANITIZE, OVERWRITE")));
        let told = |words: &str| service.audit_log.after(0).iter().any(|record| record.to_string().contains(words));
        while !told("volume disk1: SCSI SANITIZE, OVERWRITE (3c00) begins") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!told("CHECK CONDITION"));
        service.silent.store(false, Ordering::Release);
        command.join().expect("no panic").expect("it ends");
        assert!(told("(3c00): CHECK CONDITION"));
    }

    #[test]
    fn wrong_requests_are_refused() {
        let folder = TestFolder::new("[volume.disk1]\nkind = 'ram'\nsize = '1M'\n");
        let service = TestService::start(&folder.0, Vec::new()).expect("it starts");
        let client = Client::local(Some(service.socket.clone()));
        let refused = |volume: &str, body| {
            let path = format!("/v1/volume/{volume}/scsi");
            match client.json(Method::Post, &path, RequestBody::Json(body)) {
                Err(ClientError::Refused(status, words, _)) => (status, words),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused("disk2", json!({ "command": "00" })).0, 404);
        for body in [
            json!({}),
            json!({ "command": "00", "data-out": "no base64" }),
            json!({ "command": "00", "seconds": 0 }),
            json!({ "command": "00", "seconds": 91 }),
            json!({ "command": "00", "data-inn": 8 }),
        ] {
            assert_eq!(refused("disk1", body.clone()).0, 400, "{body}");
        }
        let long = "A".repeat(BODY_BYTES_MAX);
        assert_eq!(refused("disk1", json!({ "command": "00", "data-out": long })).0, 413);
        assert_eq!((unhex("0aff"), unhex("0"), unhex("0g"), unhex("é")), (Some(vec![10, 255]), None, None, None));
    }
}
