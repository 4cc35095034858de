//! Kernel modules: their files and their dependencies.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// A module, uncompressed.
pub(crate) struct Module {
    pub name: String,
    pub image: Vec<u8>,
}

/// The modules of one kernel.
pub(crate) struct Modules {
    files: HashMap<String, PathBuf>,
    built_in: HashSet<String>,
}

impl Modules {
    /// Reads the kernel's folder under lib/modules.
    pub(crate) fn open(top: &Path) -> Result<Self> {
        let mut files = HashMap::new();
        collect(&top.join("kernel"), &mut files)?;
        let list = std::fs::read_to_string(top.join("modules.builtin")).context("modules.builtin")?;
        let built_in = list.lines().filter_map(|line| name_of(Path::new(line))).collect();
        Ok(Self { files, built_in })
    }

    /// Returns the wanted modules and all that they depend on, in an order in which they can be loaded. A name that
    /// ends with "?" may be absent, because kernels differ in what is a module.
    pub(crate) fn in_order(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        let mut seen = HashSet::new();
        for name in wanted {
            match name.strip_suffix('?') {
                Some(name) if !self.files.contains_key(name) => {}
                Some(name) => self.visit(name, &mut seen, &mut order)?,
                None => self.visit(name, &mut seen, &mut order)?,
            }
        }
        Ok(order)
    }

    fn visit(&self, name: &str, seen: &mut HashSet<String>, order: &mut Vec<Module>) -> Result<()> {
        let name = name.replace('-', "_");
        if self.built_in.contains(&name) || !seen.insert(name.clone()) {
            return Ok(());
        }
        let path = self.files.get(&name).with_context(|| format!("the kernel has no module {name}"))?;
        let image = uncompressed(path)?;
        for needed in depends(&image) {
            self.visit(&needed, seen, order)?;
        }
        order.push(Module { name, image });
        Ok(())
    }
}

/// Writes modules and those that they need, with names in the order in which they are loaded.
pub(super) fn write_modules(all: &Path, names: &[&str], to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for (at, module) in Modules::open(all)?.in_order(names)?.into_iter().enumerate() {
        let file = to.join(format!("{at:03}-{}.ko", module.name));
        std::fs::write(&file, module.image).with_context(|| format!("{}", file.display()))?;
    }
    Ok(())
}

/// Returns the module name of a file: names have underscores where files may have dashes.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, _) = file.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn collect(folder: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = name_of(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// Returns a file's content, decompressed by the tool for its extension.
pub(super) fn uncompressed(path: &Path) -> Result<Vec<u8>> {
    let tool = match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return Ok(std::fs::read(path)?),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => bail!("{} has an unknown compression format", path.display()),
    };
    let output = Command::new(tool).arg("-dc").arg(path).output().with_context(|| format!("cannot start {tool}"))?;
    ensure!(output.status.success(), "{tool} cannot read {}", path.display());
    Ok(output.stdout)
}

/// Returns the modules that a module's `depends=` names; a module's information is a list of "key=value" strings, each
/// ended by a zero byte.
fn depends(image: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = image.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = image[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_loaded_before_their_users_and_once() {
        let top = std::env::temp_dir().join(format!("lunar-modules-{}", std::process::id()));
        let kernel = top.join("kernel/fs");
        std::fs::create_dir_all(&kernel).unwrap();
        std::fs::write(top.join("modules.builtin"), "kernel/crypto/crc32c_generic.ko\n").unwrap();
        std::fs::write(kernel.join("ext4.ko"), b"\x7fELF\0depends=mbcache,jb-d2,crc32c_generic\0x").unwrap();
        std::fs::write(kernel.join("mbcache.ko"), b"\x7fELF\0depends=\0").unwrap();
        std::fs::write(kernel.join("jb-d2.ko"), b"\x7fELF\0depends=mbcache\0").unwrap();
        let modules = Modules::open(&top).unwrap();
        let names: Vec<String> = modules.in_order(&["ext4", "mbcache"]).unwrap().into_iter().map(|m| m.name).collect();
        assert_eq!(names, ["mbcache", "jb_d2", "ext4"]);
        assert!(modules.in_order(&["nothing"]).is_err());
        assert!(modules.in_order(&["nothing?"]).unwrap().is_empty());
        assert_eq!(modules.in_order(&["mbcache?"]).unwrap().len(), 1);
        std::fs::remove_dir_all(top).unwrap();
    }
}
