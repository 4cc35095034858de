//! The options of `lunar serve` that become ports: each names a link or an address.

use crate::command_line::{Draft, Given, OptionMistake, TARGET};

/// An option that may be given several times, and whose values become ports.
#[derive(Clone, Copy, Debug)]
pub struct PortOption {
    /// The option, with its dashes.
    pub option: &'static str,
    /// The section of a port.
    pub section: &'static str,
    /// The key that has the value.
    pub key: &'static str,
    /// Whether a port is one of the target; otherwise hosts reach all targets of its portal group.
    pub names_target: bool,
    /// The advice if a value is given twice.
    pub advice: &'static str,
}

/// A value of such an option.
#[derive(Clone, Debug)]
pub struct Written {
    /// As it is given.
    pub argument: String,
    /// The value of the key.
    pub value: String,
    /// Other keys.
    pub more: Vec<(&'static str, String)>,
}

impl PortOption {
    /// The name of the section of a value of this number.
    #[must_use]
    pub fn name(number: usize) -> String {
        format!("{}", number + 1)
    }

    /// Declares a port for each value.
    ///
    /// # Errors
    /// A value is given twice.
    pub fn configure(&self, values: &[String], given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        let written = |value: &String| Written { argument: value.clone(), value: value.clone(), more: Vec::new() };
        self.configure_written(&values.iter().map(written).collect::<Vec<_>>(), given, draft)
    }

    /// As [`PortOption::configure`], for values that set several keys.
    ///
    /// # Errors
    /// A value is given twice.
    pub fn configure_written(
        &self,
        values: &[Written],
        given: &Given<'_>,
        draft: &mut Draft,
    ) -> Result<(), OptionMistake> {
        for (at, value) in values.iter().enumerate() {
            let argument = format!("{} {}", self.option, value.argument);
            if values[..at].iter().any(|before| before.argument == value.argument) {
                return Err(OptionMistake::Twice { argument, advice: self.advice });
            }
            let mut keys = draft.object_of(&argument, self.section, &Self::name(at));
            keys.set(self.key, value.value.as_str());
            for (key, value) in &value.more {
                keys.set(key, value.as_str());
            }
            if self.names_target {
                keys.set("target", TARGET);
            }
            // The first, as for other hosts.
            keys.set("portal-group", given.groups[0].as_str());
        }
        Ok(())
    }
}
