call worker.apply_roles()
